"""Score records as pages to read: Markdown, or one self-contained HTML file without scripts or requests."""

from dare_eval.report.flags import Flag as Flag
from dare_eval.report.flags import flags as flags
from dare_eval.report.html import html_report as html_report
from dare_eval.report.markdown import markdown_report as markdown_report
from dare_eval.report.steps import step_picture as step_picture

__all__ = ["Flag", "flags", "html_report", "markdown_report", "step_picture"]
