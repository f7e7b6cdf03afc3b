"""What every part of the package may use: checks of plain values, and imports that wait. No torch here."""
