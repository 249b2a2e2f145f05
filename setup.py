"""What pyproject.toml cannot say: a wheel carries the environments, so that who installs it can build them on Azure."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithEnvironments(build_py):
    """Puts environments/ and constraints.txt where orchestrator/backends/azure/assets.py looks for them without
    a checkout."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        place = Path(self.build_lib, "orchestrator", "shipped")
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree("environments", place / "environments")
        shutil.copy("constraints.txt", place)


setup(cmdclass={"build_py": BuildWithEnvironments})
