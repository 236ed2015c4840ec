"""`python -m mitigate`, so that launchers can start it: `accelerate launch -m mitigate score …`."""

from mitigate.cli import main

if __name__ == "__main__":
    main()
