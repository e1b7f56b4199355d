"""From a configuration with `auto` in it to one without, every choice with its reason."""

from llmsys_exp.plan.resolve import Choice, Plan, plan_to_dict, resolve

__all__ = ["Choice", "Plan", "plan_to_dict", "resolve"]
