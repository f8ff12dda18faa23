"""The shell of kraft: voters and observers, the newest image, registration, and requests to the controller."""
