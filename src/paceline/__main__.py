"""``python -m paceline``, which is also what ``torchrun -m paceline`` starts."""

from paceline.cli import main

if __name__ == "__main__":
    main()
