"""Gathers settings from file, environment and command line, with warnings about suspicious ones."""

from __future__ import annotations

from tidemill.model.configs.access_control import AUTHORIZER_OPTIONS
from tidemill.model.configs.all_keys import BROKER_KEYS, TOPIC_KEYS, TOPIC_SYNONYMS
from tidemill.model.configs.config_values import Setting
from tidemill.model.configs.key_support import QUOTAS, YES
from tidemill.model.similar_names import did_you_mean

ENVIRONMENT_PREFIX = "TIDEMILL_"
NOT_KEYS = frozenset(
    {"TIDEMILL_PLAIN", "TIDEMILL_BUILD", "TIDEMILL_CONFIG", "TIDEMILL_BOOTSTRAP", "TIDEMILL_CLUSTER_DIR"}
)
"""Variables of this program that are not broker keys."""

LISTENER_PREFIX = "listener.name."
PLUGIN_PREFIXES = ("config.providers.", "rsm.config.", "rlmm.config.")


class Gathered:
    """Settings by key, where the last value of a key applies; with warnings and notes."""

    def __init__(self) -> None:
        self.settings: dict[str, Setting] = {}
        self.listener_values: dict[str, Setting] = {}
        self.authorizer_options: dict[str, Setting] = {}
        """Options of Kafka's authorizer, which are not keys of a broker."""
        self.warnings: list[str] = []
        self._layers: dict[str, str] = {}

    def add(self, name: str, text: str, provenance: str, layer: str) -> None:
        """Adds a setting. ``layer`` is its source: a key that is set twice in one source causes a warning."""
        text = text.strip()
        if name.startswith(LISTENER_PREFIX):
            self._add_listener_value(name, text, provenance)
            return
        if name in AUTHORIZER_OPTIONS:
            self.authorizer_options[name] = Setting(text, text, provenance)
            return
        key = BROKER_KEYS.get(name)
        if key is None:
            if not is_known(name):
                self.warnings.append(unknown(name, provenance))
            return
        if self._layers.get(name) == layer:
            earlier = self.settings[name].provenance
            self.warnings.append(f"{name} is given twice ({earlier}, {provenance}): the last value applies")
        self._layers[name] = layer
        value = key.parse(text, provenance)
        if not text and key.default is None:
            value = None
        self.settings[name] = Setting(value, text, provenance)

    def add_variable(self, variable: str, text: str) -> None:
        """Adds an environment variable that starts with the prefix."""
        name = variable[len(ENVIRONMENT_PREFIX) :].lower().replace("_", ".")
        for candidate in (name, f"tidemill.{name}"):
            if candidate in BROKER_KEYS or candidate in AUTHORIZER_OPTIONS:
                self.add(candidate, text, f"environment {variable}", layer="environment")
                return
        hint = did_you_mean(name, BROKER_KEYS)
        self.warnings.append(f"environment {variable}: {name} is not a broker key, and has no effect{hint}")

    def quota_warnings(self) -> list[str]:
        """Returns one line for each quota that was set: an operator relies on its limit."""
        return [
            f"{name}={setting.text} is not enforced: quotas come with a later version ({setting.provenance})"
            for name, setting in self.settings.items()
            if BROKER_KEYS[name].effect == QUOTAS
        ]

    def notes(self) -> list[str]:
        """Returns one line for each other key that was set and has no effect."""
        options = [
            f"{name} is accepted; no effect: there is no authorizer ({setting.provenance})"
            for name, setting in self.authorizer_options.items()
        ]
        return options + [
            f"{name} is accepted and {BROKER_KEYS[name].effect} ({setting.provenance})"
            if BROKER_KEYS[name].effect.startswith("comes")
            else f"{name} is accepted; {BROKER_KEYS[name].effect} ({setting.provenance})"
            for name, setting in self.settings.items()
            if BROKER_KEYS[name].effect not in (YES, QUOTAS)
        ]

    def _add_listener_value(self, name: str, text: str, provenance: str) -> None:
        listener, _, rest = name[len(LISTENER_PREFIX) :].partition(".")
        # SASL keys of a listener may have the mechanism in front: listener.name.x.plain.sasl.jaas.config.
        key = BROKER_KEYS.get(rest) or BROKER_KEYS.get(rest.partition(".")[2])
        if key is None:
            self.warnings.append(
                f"{name}: {rest or listener} is not a listener key{did_you_mean(rest, BROKER_KEYS)}"
            )
            return
        value = key.parse(text, f"{name}, {provenance}")
        full_name = f"{LISTENER_PREFIX}{listener.lower()}.{rest}"
        self.listener_values[full_name] = Setting(value, text, provenance)


def is_known(name: str) -> bool:
    """Returns whether a broker accepts a key of this name; the rest of a listener's key is not checked."""
    return (
        name in BROKER_KEYS
        or name in AUTHORIZER_OPTIONS
        or name.startswith((LISTENER_PREFIX, *PLUGIN_PREFIXES))
    )


def unknown(name: str, provenance: str, *, is_refused: bool = False) -> str:
    """Returns the message about a key that a broker does not know."""
    if name in TOPIC_KEYS:
        hint = f"; its broker key for all topics is {TOPIC_SYNONYMS[name]}" if name in TOPIC_SYNONYMS else ""
        return f"{name} is a topic key, not a broker key{hint} ({provenance})"
    if not name:
        return f"{provenance}: the key is missing; a line must be KEY=VALUE"
    effect = "" if is_refused else ", and has no effect"
    return f"{name} is not a broker key{effect} ({provenance}){did_you_mean(name, BROKER_KEYS)}"
