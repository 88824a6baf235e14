"""Programs of core ATen to loop IR. Nothing here knows a target."""
