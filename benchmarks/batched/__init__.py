"""What do rows lose that do not advance alone, but in lock-step, or padded and realigned after every step?"""
