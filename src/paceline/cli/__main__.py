"""python -m paceline.cli"""

from paceline.cli import main

if __name__ == "__main__":
    main()
