"""The page about the settings is the one that the declarations make."""

from pathlib import Path

from duramen.config import SETTINGS, TOPIC
from duramen.config.document import page

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run: python -m duramen.config.document > docs/configuration.md"


def test_page_names_every_public_setting() -> None:
    text = page()
    for name, setting in [*SETTINGS.items(), *TOPIC.items()]:
        assert (f"`{name}`" in text) != setting.internal
