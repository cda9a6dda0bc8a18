"""Makes a report into one HTML page with figures and tables. `page.begin_page` begins to make
it.
"""
