"""The routes of the HTTP admin API, a module for each subject."""
