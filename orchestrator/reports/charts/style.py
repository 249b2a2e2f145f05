"""Colours and style sheets of reports: light or dark mode by the system's setting, one column on narrow screens."""

from __future__ import annotations

_PALETTE = {  # name -> colour in light mode, in dark mode
    "page": ("#f6f7f9", "#101418"),
    "card": ("#fff", "#181d23"),
    "ink": ("#1b1f24", "#e7eaee"),
    "soft": ("#59636e", "#9aa5b1"),
    "line": ("#dfe3e8", "#2c343d"),
    "code": ("#eef0f3", "#222932"),
    "training": ("#3a78d0", "#6ea5f0"),
    "validation": ("#c2410c", "#f59e56"),
    "reference": ("#6b7280", "#9aa5b1"),
    "corridor": ("#e6ecf5", "#22303f"),
    "run-1": ("#3a78d0", "#6ea5f0"),
    "run-2": ("#c2410c", "#f59e56"),
    "run-3": ("#17803d", "#5cc98a"),
    "run-4": ("#7c3aed", "#b79cff"),
    "run-5": ("#a16207", "#e0b84c"),
    "run-6": ("#0e7490", "#4cc3d9"),
    "run-7": ("#be185d", "#f48fb8"),
    "run-8": ("#57534e", "#b5aea8"),
    "good": ("#17733a", "#56c27a"),
    "bad": ("#b42318", "#ff8a7a"),
    "busy": ("#1d5fbf", "#7fb0f5"),
    "calm": ("#59636e", "#9aa5b1"),
}
LIGHT = {name: light for name, (light, _) in _PALETTE.items()}
DARK = {name: dark for name, (_, dark) in _PALETTE.items()}

KINDS = tuple(name for name in _PALETTE if name.startswith("run-"))  # classes that tint the lines of several runs


def variables(colours: dict[str, str]) -> str:
    """Return colours as variables of a style sheet: `--page: #f6f7f9; --card: ...`."""
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


_COLOURS = f"""
:root {{ color-scheme: light dark; {variables(LIGHT)} }}
@media screen and (prefers-color-scheme: dark) {{
  :root {{ {variables(DARK)} }}
}}
"""

_SHARED = """
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 32px 24px 48px; max-width: 1200px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif;
  -webkit-text-size-adjust: 100%;
}
h1 { margin: 0; font-size: 26px; line-height: 1.25; overflow-wrap: anywhere; }
h2 { margin: 36px 0 12px; font-size: 18px; }
figure h2 { margin: 0; font-size: 15px; }
code, pre, .alert { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; }
code, pre { overflow-wrap: anywhere; }
a { color: var(--busy); }
.title { display: flex; flex-wrap: wrap; gap: 8px 14px; align-items: center; }
.badge {
  padding: 2px 12px; border: 1.5px solid currentColor; border-radius: 99px; font-size: 13px; font-weight: 600;
}
.completed, .good { color: var(--good); }
.failed, .bad { color: var(--bad); }
.running, .starting { color: var(--busy); }
.queued, .cancelled, .preempted { color: var(--calm); }
.facts { display: flex; flex-wrap: wrap; gap: 6px 32px; margin: 14px 0 0; }
.facts dt, .soft, .note { color: var(--soft); }
.facts dt { font-size: 13px; }
.facts dd { margin: 0; overflow-wrap: anywhere; }
.alert {
  margin: 16px 0 0; padding: 10px 14px; border-left: 4px solid var(--bad); border-radius: 4px;
  background: var(--card); overflow-wrap: anywhere; white-space: pre-wrap;
}
.figures, .charts { display: grid; gap: 14px; margin: 14px 0 0; padding: 0; }
.figures { margin-top: 24px; }
.figures { grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); }
.figures div, figure, .panel {
  margin: 0; padding: 14px 16px; border: 1px solid var(--line); border-radius: 8px; background: var(--card);
}
.figures dt, .figures .soft, .figures .good, .figures .bad { font-size: 13px; }
.figures dt { color: var(--soft); }
.figures dd { margin: 0; line-height: 1.4; }
.figures .value { font-size: 25px; font-weight: 600; font-variant-numeric: tabular-nums; line-height: 1.35; }
.charts { grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 4px 0 8px; padding: 0; list-style: none; }
.legend { color: var(--soft); font-size: 13px; }
.legend b { color: var(--ink); font-weight: 600; font-variant-numeric: tabular-nums; }
.legend i { display: inline-block; width: 18px; margin-right: 6px; border-top: 2.5px solid; vertical-align: middle; }
.legend i.training { border-color: var(--training); }
.legend i.validation { border-color: var(--validation); }
.legend i.reference { border-color: var(--reference); border-top-style: dashed; }
.legend i.corridor { height: 11px; border: 0; border-radius: 2px; background: var(--corridor); }
.legend i.dot { width: 9px; height: 9px; border: 0; border-radius: 50%; background: var(--validation); }
.note { margin: 6px 0 0; font-size: 13px; }
.empty { margin: 14px 0 0; padding: 28px 16px; text-align: center; color: var(--soft); }
svg { display: block; width: 100%; height: auto; }
i[class^="run-"] { display: inline-block; width: 22px; margin-right: 8px; border-top: 3px solid; }
i[class^="run-"] { vertical-align: middle; }
.legend i[class^="run-"] { width: 18px; margin-right: 6px; border-top-width: 2.5px; }
.hover rect { fill: transparent; }
.hover line, .hover circle { visibility: hidden; pointer-events: none; }
.hover line { stroke: var(--soft); }
.hover circle { stroke: var(--card); stroke-width: 1.5; }
.hover:hover line, .hover:hover circle { visibility: visible; }
table { width: 100%; border-collapse: collapse; }
th, td { padding: 6px 16px 6px 0; border-top: 1px solid var(--line); text-align: left; vertical-align: top; }
tr:first-child > * { border-top: 0; }
th { width: 130px; color: var(--soft); font-weight: 400; }
td { overflow-wrap: anywhere; }
td table { width: auto; }
td table th code { overflow-wrap: break-word; }
td table th { width: auto; color: var(--ink); }
td table th, td table td { padding-right: 28px; }
td table th, td table td { padding-top: 2px; padding-bottom: 2px; border: 0; }
.profile p { margin: 0; }
.profile table { width: auto; margin: 12px 0; font-variant-numeric: tabular-nums; }
.profile th { width: auto; white-space: nowrap; }
.profile tr > * { padding: 2px 28px 2px 0; border-top: 0; }
.profile tr > * + * { text-align: right; white-space: nowrap; }
.profile tr > :last-child { padding-right: 0; }
.wide { overflow-x: auto; }
.figures + .panel, .panel + .panel { margin-top: 14px; }
.panel > table:only-child { margin: 0; }
.alert + pre { margin-top: 10px; }
pre { margin: 0; padding: 12px 14px; border-radius: 6px; background: var(--code); white-space: pre-wrap; }
""".strip()

_NARROW = """
@media (max-width: 600px) {
  body { padding: 20px 14px 36px; }
  .figures { grid-template-columns: 1fr 1fr; gap: 10px; }
  .charts { gap: 10px; }
  figure, .figures div, .panel { padding: 12px; }
  .figures .value { font-size: 21px; }
  svg text, svg .end { font-size: 17px; }
  .panel > table > tbody > tr > * { display: block; width: auto; padding-right: 0; }
  .panel > table > tbody > tr > td { padding-top: 0; border-top: 0; }
  .panel.profile > table > * > tr > * { display: table-cell; padding-right: 10px; }
  td table tr { display: block; padding: 3px 0; }
  td table th { display: block; padding: 0; }
  td table td { display: inline; padding: 0 12px 0 0; }
}
@media print {
  :root { color-scheme: light; --page: #fff; }
  body { max-width: none; padding: 0; }
  .charts { grid-template-columns: 1fr 1fr; }
  .wide { overflow: visible; }
  figure, .figures div, .panel { break-inside: avoid; }
}
""".strip()

_DRAWING = """
svg text { fill: var(--soft); font-size: 12.5px; font-variant-numeric: tabular-nums; }
svg .value { text-anchor: end; }
svg .step { text-anchor: middle; }
svg .end { font-size: 11.5px; }
svg .corridor { fill: var(--corridor); }
svg line { stroke: var(--line); }
svg .axis { stroke: var(--soft); }
svg .reference { stroke: var(--reference); stroke-width: 1.5; stroke-dasharray: 6 5; }
svg polyline { fill: none; stroke-width: 1.5; stroke-linejoin: round; }
svg .title { fill: var(--ink); font-size: 16px; }
svg polyline.validation { stroke-width: 2; }
svg rect.bar { fill: var(--training); }
svg polyline.line { stroke-width: 1.2; }
svg polyline.trial { stroke: var(--training); opacity: .55; }
svg polyline.stopped { stroke: var(--reference); opacity: .55; stroke-dasharray: 4 3; }
svg polyline.best { stroke: var(--validation); stroke-width: 2.4; }
svg polyline.bar { stroke-width: 5; stroke-dasharray: none; opacity: .8; }
svg circle.trial { fill: var(--training); opacity: .8; }
svg circle.stopped { fill: var(--card); stroke: var(--reference); stroke-width: 1.5; }
svg circle.best { fill: var(--validation); }
"""
_LINES = "\n".join(
    f"svg polyline.{kind} {{ stroke: var(--{kind}); }}\nsvg circle.{kind} {{ fill: var(--{kind}); }}"
    for kind in ("training", "validation", *KINDS)
)
_DASHED = "\n".join(f"svg polyline.{kind} {{ stroke-dasharray: 7 3; }}" for kind in KINDS[4:])
_KEYS = "\n".join(
    f"i.{kind} {{ border-color: var(--{kind}); {'border-top-style: dashed; ' if kind in KINDS[4:] else ''}}}"
    for kind in KINDS
)

# The styles of a standalone SVG. Converters to PNG support only selectors by element and class.
DRAWING_STYLE = f"{_DRAWING.strip()}\n{_LINES}\n{_DASHED}"
STYLE = f"{_COLOURS.strip()}\n{_SHARED}\n{DRAWING_STYLE}\n{_KEYS}\n{_NARROW}"

SWEEP_STYLE = """
svg polyline.line:hover { stroke-width: 3.5; opacity: 1; }
.legend i.trial { border-color: var(--training); }
.legend i.stopped { border-color: var(--reference); border-top-style: dashed; }
.legend i.best { border-color: var(--validation); }
.trials { font-variant-numeric: tabular-nums; }
.trials th { width: auto; white-space: nowrap; }
.trials td { overflow-wrap: normal; }
.trials .best td { font-weight: 600; color: var(--validation); }
.trials .best td .soft { font-weight: 400; }
.bars td { width: 60%; white-space: nowrap; }
.bars th { width: auto; color: var(--ink); }
.bars .share { display: inline-block; height: 10px; margin-right: 8px; border-radius: 3px; }
.bars .share { background: var(--training); }
@media (max-width: 600px) {
  .bars tr > * { display: block; width: auto; overflow-wrap: break-word; }
  .bars tr > td { padding-top: 0; border-top: 0; }
  .panel > .trials > * > tr > *, .panel > .trials > * > tr > td { display: table-cell; padding: 4px 14px 4px 0; }
}
""".strip()

COMPARISON_STYLE = """
.runs { margin: 14px 0 0; padding: 0; list-style: none; }
.runs li { position: relative; padding: 3px 0 3px 32px; }
.runs li > i { position: absolute; left: 0; top: 14px; }
.runs .member { display: inline-block; margin-right: 22px; overflow-wrap: anywhere; }
.runs .badge { margin-left: 6px; padding: 0 9px; font-size: 12px; }
.comparison { width: auto; font-variant-numeric: tabular-nums; }
.comparison th { width: auto; color: var(--ink); }
.comparison th, .comparison td { white-space: nowrap; }
.comparison td { max-width: 340px; overflow: hidden; text-overflow: ellipsis; }
.comparison th:first-child { position: sticky; left: 0; background: var(--card); }
.comparison tbody th { color: var(--soft); }
.comparison thead th { vertical-align: bottom; font-weight: 600; }
.comparison tbody tr:first-child > * { border-top: 1px solid var(--line); }
.comparison th, .comparison td { padding-right: 24px; }
@media (max-width: 600px) {
  .panel > .comparison > * > tr > *,
  .panel > .comparison > * > tr > td { display: table-cell; padding: 5px 16px 5px 0; }
  .panel > .comparison > * > tr > * { border-top: 1px solid var(--line); }
}
""".strip()
