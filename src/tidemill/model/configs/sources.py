"""Gathers settings from file, environment and command line, and says what is odd about them."""

from __future__ import annotations

from tidemill.model.configs.access_control import AUTHORIZER_OPTIONS, check_access
from tidemill.model.configs.tables import BROKER_KEYS, TOPIC_KEYS, TOPIC_SYNONYMS
from tidemill.model.configs.topic import near
from tidemill.model.configs.values import Setting
from tidemill.model.errors import ConfigError

ENVIRONMENT_PREFIX = "TIDEMILL_"
NOT_KEYS = frozenset(
    {"TIDEMILL_PLAIN", "TIDEMILL_BUILD", "TIDEMILL_CONFIG", "TIDEMILL_BOOTSTRAP", "TIDEMILL_CLUSTER_DIR"}
)
"""Variables of ours that are no broker keys."""

LISTENER_PREFIX = "listener.name."
PLUGIN_PREFIXES = ("config.providers.", "rsm.config.", "rlmm.config.")


class Gathered:
    """Settings by key, the last one of a key holding; warnings and notes as they come up."""

    def __init__(self) -> None:
        self.settings: dict[str, Setting] = {}
        self.listener_values: dict[str, Setting] = {}
        self.authorizer_options: dict[str, Setting] = {}
        """What Kafka's authorizer would be told: these are no keys of a broker."""
        self.warnings: list[str] = []
        self._layers: dict[str, str] = {}

    def add(self, name: str, text: str, provenance: str, layer: str) -> None:
        """One setting. ``layer`` is its source: within one source a key that comes twice is odd."""
        if name.startswith(LISTENER_PREFIX):
            self._add_listener_value(name, text, provenance)
            return
        if name in AUTHORIZER_OPTIONS:
            self.authorizer_options[name] = Setting(text.strip(), text.strip(), provenance)
            return
        key = BROKER_KEYS.get(name)
        if key is None:
            if not is_known(name):
                self.warnings.append(unknown(name, provenance))
            return
        if self._layers.get(name) == layer:
            earlier = self.settings[name].provenance
            self.warnings.append(f"{name} is given twice ({earlier}, {provenance}): the last one holds")
        self._layers[name] = layer
        try:
            value = key.parse(text)
        except ConfigError as problem:
            raise ConfigError(f"{problem} ({provenance})") from None
        if text.strip() == "" and key.default is None:
            value = None
        self.settings[name] = Setting(value, text.strip(), provenance)

    def add_variable(self, variable: str, text: str) -> None:
        """One environment variable that begins with the prefix."""
        name = variable[len(ENVIRONMENT_PREFIX) :].lower().replace("_", ".")
        for candidate in (name, f"tidemill.{name}"):
            if candidate in BROKER_KEYS or candidate in AUTHORIZER_OPTIONS:
                self.add(candidate, text, f"environment {variable}", layer="environment")
                return
        hint = near(name, BROKER_KEYS)
        self.warnings.append(
            f"environment {variable}: {name} is no key of the broker, and without effect{hint}"
        )

    def check_access(self) -> None:
        """Raises ConfigError where the settings that hold ask for access control."""
        check_access(self.settings, self.authorizer_options)

    def notes(self) -> list[str]:
        """One line for each key that was set and has no effect."""
        options = [
            f"{name} is accepted; no effect: there is no authorizer ({setting.provenance})"
            for name, setting in self.authorizer_options.items()
        ]
        return options + [
            f"{name} is accepted and {BROKER_KEYS[name].effect} ({setting.provenance})"
            if BROKER_KEYS[name].effect.startswith("comes")
            else f"{name} is accepted; {BROKER_KEYS[name].effect} ({setting.provenance})"
            for name, setting in self.settings.items()
            if not BROKER_KEYS[name].takes_effect
        ]

    def _add_listener_value(self, name: str, text: str, provenance: str) -> None:
        listener, _, rest = name[len(LISTENER_PREFIX) :].partition(".")
        # SASL keys of a listener may have the mechanism before them: listener.name.x.plain.sasl.jaas.config.
        key = BROKER_KEYS.get(rest) or BROKER_KEYS.get(rest.partition(".")[2])
        if key is None:
            self.warnings.append(
                f"{name}: {rest or listener} is no key of a listener{near(rest, BROKER_KEYS)}"
            )
            return
        try:
            value = key.parse(text)
        except ConfigError as problem:
            raise ConfigError(f"{name}: {problem} ({provenance})") from None
        full_name = f"{LISTENER_PREFIX}{listener.lower()}.{rest}"
        self.listener_values[full_name] = Setting(value, text.strip(), provenance)


def is_known(name: str) -> bool:
    """Whether a broker may be given a key of this name; what a listener's own key means is not looked at."""
    return (
        name in BROKER_KEYS
        or name in AUTHORIZER_OPTIONS
        or name.startswith((LISTENER_PREFIX, *PLUGIN_PREFIXES))
    )


def unknown(name: str, provenance: str, *, is_refused: bool = False) -> str:
    """What to say of a key that a broker does not know."""
    if name in TOPIC_KEYS:
        hint = f"; for all topics it is {TOPIC_SYNONYMS[name]}" if name in TOPIC_SYNONYMS else ""
        return f"{name} is a key of a topic, not of a broker{hint} ({provenance})"
    if not name:
        return f"{provenance}: there is no key before the value; a line is KEY=VALUE"
    effect = "" if is_refused else ", and without effect"
    return f"{name} is no key of the broker{effect} ({provenance}){near(name, BROKER_KEYS)}"
