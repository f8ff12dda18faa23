"""The shell of kraft: voters and observers, the newest image, how a broker registers and asks the controller."""
