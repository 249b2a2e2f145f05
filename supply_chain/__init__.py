"""Lock file, licences, bill of materials and audit of the packages that the project needs; never part of the wheel."""
