"""The knobs of this process and their results: `applied` or `failed`, with a sentence for users.

A knob answers as soon as the result is known, and again when more is known: the last record of a name counts. A knob that has found nothing
to change after SETTLE_STEPS answers `failed` with what is missing; it may still find it later. Answers that were not received, or went to
an agent that has ended, are sent again at the end of a step.
"""

import json
import os

from ..record import head
from .knob import KnobError

SETTLE_STEPS = 3  # by then, all loaders, groups, models and optimizers of a script are in use
DETAIL_BYTES = 2048  # of the 8 KiB a record may have
KNOBS_MAX = 32  # there are half as many named knobs; a longer list is not from Lockstep


class Panel:
    def __init__(self, probe, kinds, text):
        self.probe = probe
        self.on = True
        self.knobs = []
        self._kinds = kinds
        self._answers = {}  # name -> (value, state, detail, number of the in-place change or None)
        self._live = None  # the current in-place change
        self._sent = {}  # name -> the connection that received its answer
        self._steps = 0
        os.register_at_fork(after_in_child=self._turn_off)
        for name, value in self._read(text).items():
            self._add(name, value)

    @property
    def torch(self):
        return self.probe.torch

    def of(self, kind):
        """Returns the knob of this class, or None."""
        return next((knob for knob in self.knobs if isinstance(knob, kind)), None)

    def answer(self, name, value, state, detail):
        answer = (value, state, head(detail, DETAIL_BYTES), self._live)
        if self.on and self._answers.get(name) != answer:
            self._answers[name] = answer
            self._sent.pop(name, None)
            self._say()

    def state(self, name):
        """Returns `applied`, `failed`, or None while unknown."""
        return self._answers.get(name, (None, None))[1]

    def step_ended(self):
        self._steps += 1
        if self._steps == SETTLE_STEPS:
            self.settle()
        self._say()

    def settle(self):
        """Runs after the first steps and at the end: a knob that still waits reports what is missing."""
        for knob in self.knobs:
            knob.guard(knob.settle)

    def live(self, text):
        """Applies in-place changes; a value of None is the script's own."""
        try:
            order = json.loads(text)
            self._live, wanted = int(order["live"]), order["set"]
            assert isinstance(wanted, dict) and len(wanted) <= KNOBS_MAX
        except (ValueError, TypeError, KeyError, AssertionError):
            self._live = None
            self.probe.note("an order to turn knobs (knobs.live) cannot be read: none is turned")
            return
        try:
            for name, value in wanted.items():
                self._turn(name, None if value is None else str(value))
        finally:
            self._live = None

    def _turn(self, name, value):
        if not hasattr(self._kinds.get(name), "live"):
            self.answer(head(name, 64), head(value or "", 64), "failed", "this knob cannot be turned while a run goes on: another attempt can")
            return
        if not any(knob.name == name for knob in self.knobs):
            self.knobs.append(self._kinds[name](self))
        for knob in self.knobs:
            if knob.name == name:
                knob.value = value or ""
                knob.guard(knob.live, value)

    def _say(self):
        channel = self.probe.channel
        if self.torch is None:
            return  # it is not known yet whether this process is a training rank; the end of the first step sends the answer
        for name, (value, state, detail, live) in self._answers.items():
            if self._sent.get(name) == channel.connections and channel.connected():
                continue
            fields = {"name": name, "value": value, "state": state, "detail": detail, "live": live}
            if self.probe.say("knob", fields):
                self._sent[name] = channel.connections

    def _read(self, text):
        try:
            wanted = json.loads(text)
            assert isinstance(wanted, dict) and len(wanted) <= KNOBS_MAX
            return {str(name): str(value) for name, value in wanted.items()}
        except (ValueError, AssertionError):
            self.probe.note("the knobs asked for (LOCKSTEP_KNOBS) are no JSON object of names and values: no knob is turned")
            return {}

    def _add(self, name, value):
        kind = self._kinds.get(name)
        if kind is None:
            self.answer(head(name, 64), head(value, 64), "failed", "this probe knows no knob of that name")
            return
        try:
            self.knobs.append(kind(self, value))
        except KnobError as error:
            self.answer(name, value, "failed", str(error))

    def _turn_off(self):
        """Runs in a forked child, whose training is not watched."""
        self.on = False
