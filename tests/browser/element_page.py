"""A page of a product with the element on it, as a product would write one."""

HTML = """<!doctype html>
<html lang="{lang}">
<head><meta charset="utf-8"><title>Shop</title><meta name="viewport" content="width=device-width">
<link rel="stylesheet" href="/shop.css">
<script type="module" src="{service}/widget.js"></script>
<script type="module" src="/shop.js"></script></head>
<body><main><h1>Shop</h1>
<apportion-quota {attributes}><a slot="action" href="/upgrade">Upgrade</a></apportion-quota>
</main></body></html>"""

CSS = """:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { margin: 0; background: light-dark(#fff, #14161c); color: light-dark(#1c2230, #e8eaf0) }
main { max-width: 30rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.25rem } a { color: light-dark(#2450b8, #9db8ff) }"""

# The page's backend gives tokens; here the test is the backend.
SCRIPT = """
const element = document.querySelector("apportion-quota");
if (!element.hasAttribute("token")) {
  element.getToken = async () => (await fetch("/token")).text();
}
"""


def put(product, service_url, token, attributes="", lang="en"):
    """Puts the page at `/`. `token` is a function that gives one, asked for at every renewal."""
    html = HTML.format(service=service_url, attributes=attributes, lang=lang)
    product.files.update({
        "/": ("text/html", html),
        "/shop.css": ("text/css", CSS),
        "/shop.js": ("text/javascript", SCRIPT),
        "/token": ("text/plain", token),
    })
    return product.origin
