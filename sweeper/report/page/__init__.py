"""A report as one HTML page with figures: `page.page` makes it."""
