"""Codecs by name: with parameters (`topk:0.01`), composed (`topk/qsgd:4/bloom`), with feedback."""

from collections.abc import Callable

from commsched.coding.codec import Codec
from commsched.coding.feedback import SUFFIX, fed
from commsched.coding.index import INDEX_CODES, IndexCode
from commsched.coding.selection import Selection
from commsched.errors import CommschedError
from commsched.registry import Registry

TRAFFIC = ("encode_traffic", "add_traffic", "decode_traffic")
NEEDED = ("name", "lossless", "addable", "fixed", *TRAFFIC)


class Codecs(Registry[Codec]):
    """All codecs; a composed one is SELECTION[/VALUE CODEC][/INDEX CODE]; CODEC:feedback."""

    def add(self, name: str) -> Callable[[Codec], Codec]:
        """Register a codec; refuse one without the attributes that plans and prices need."""
        register = super().add(name)

        def complete(codec: Codec) -> Codec:
            if not isinstance(codec, Codec):
                raise CommschedError(f"codec {name!r} must be an object of a subclass of Codec")
            missing = [each for each in NEEDED if not hasattr(codec, each)]
            if missing:
                raise CommschedError(
                    f"codec {name!r} lacks the attribute {missing[0]!r}; a codec has"
                    f" {', '.join(NEEDED)}"
                )
            return register(codec)

        return complete

    def _find(self, name: str) -> Codec | None:
        around = name.endswith(SUFFIX)
        if "/" not in name and not around:
            return super()._find(name)
        if name not in self._made:
            inner = name.removesuffix(SUFFIX)
            self._made[name] = fed(self[inner]) if around else self._compose(name)
        return self._made[name]

    def _compose(self, name: str) -> Codec:
        def wrong(reason: str) -> CommschedError:
            form = "a composed codec is SELECTION[/VALUES][/INDEX], such as topk:0.01/qsgd:4/bloom"
            return CommschedError(f"codec {name!r}: {reason}; {form}")

        first, *rest = name.split("/")
        selection = self[first]
        if not isinstance(selection, Selection) or not selection.composes:
            raise wrong(f"{first!r} selects nothing")
        value: Codec | None = None
        index: IndexCode | None = None
        for part in rest:
            if index is not None:
                raise wrong(f"{part!r} comes after the index code")
            if part.partition(":")[0] in INDEX_CODES:
                index = INDEX_CODES[part]
                continue
            if value is not None:
                raise wrong(f"{part!r} is a second codec of the values")
            value = self[part]
            if not value.codes_values:
                raise wrong(f"{part!r} cannot code selected values")
        return selection.composed(value, index)


CODECS = Codecs("codec", "commsched.codecs")
