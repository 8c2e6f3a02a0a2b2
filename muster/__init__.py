"""The core: pure decisions and atomic steps. It imports none of its drivers."""

#: Here and not in the package's metadata only: an image holds the folders, not the package.
__version__ = "0.1.0"
