"""What do rows of a batch lose that do not advance independently: in lock-step, or padded and realigned?"""
