"""What operators are replaced by: functions that passes use, not passes."""
