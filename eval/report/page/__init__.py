"""What the page is built from: cells and tables, charts as inline SVG, templates, style, script."""
