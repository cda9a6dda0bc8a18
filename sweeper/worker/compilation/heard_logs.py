"""What a library tells its logs alone."""

import logging
from collections.abc import Sequence


class HeardLogs(logging.Filter):
    """Collects the messages of logs that begin with certain words; the logs show as much as
    before.
    """

    def __init__(self, names: Sequence[str], level: int, beginnings: tuple[str, ...]) -> None:
        """Messages of `level` and above are heard."""
        super().__init__()
        self.texts: list[str] = []
        self._names, self._level, self._beginnings = names, level, beginnings
        self._shown: dict[str, int] = {}  # the level from which a log shows its messages

    def begin(self) -> None:
        """Collect from now on."""
        self.texts.clear()
        for name in self._names:
            log = logging.getLogger(name)
            shown = self._shown.setdefault(name, log.getEffectiveLevel())
            log.setLevel(min(shown, self._level))
            log.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if text.startswith(self._beginnings):
            self.texts.append(text)
        return record.levelno >= self._shown[record.name]
