"""The look of a picture of a timeline on paper: its size, its font, its title, its lanes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """The user's choices; None: as the content needs."""

    width: float = 14.0  # in
    height: float | None = None  # in
    font: float = 7.0  # points in bars; other text in proportion
    title: str | None = None  # "": no title
    lanes: tuple[str, ...] = ()  # streams to draw; empty: all
    names: tuple[str, ...] = ()  # of the sides; empty: predicted, measured, first or second

    @property
    def lane(self) -> float:
        """The height of a lane that fits its text, in."""
        return self.font * 0.19 / 7


PLAIN = Style()
