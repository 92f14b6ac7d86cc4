"""Serves Canaille with a few users, each in one group, and one client: canaille.py PORT REDIRECT_URL"""

import sys
from wsgiref.simple_server import make_server

from canaille import create_app
from canaille.app import models
from canaille.backends import Backend

# Login name, names and group. `docs/walk-through.md` has all but the first one.
USERS = [
    ("alice", "Alice", "Doe", "cueline-operators"),
    ("bela", "Bela", "Kovacs", "sales-billing"),
    ("rosa", "Rosa", "Lind", "sales-reports"),
    ("piet", "Piet", "Visser", "ops-platform"),
    ("nora", "Nora", "Berg", "guests"),
]

port, redirect_url = int(sys.argv[1]), sys.argv[2]
app = create_app(
    {
        "SECRET_KEY": "only for a test",
        "SERVER_NAME": f"127.0.0.1:{port}",
        "PREFERRED_URL_SCHEME": "http",
        "CANAILLE": {"DATABASE": "memory", "JAVASCRIPT": False, "HTMX": False},
        "CANAILLE_OIDC": {},
    }
)
with app.app_context(), Backend.instance.session():
    for name, given_name, family_name, group in USERS:
        user = models.User(
            user_name=name,
            display_name=name,
            formatted_name=f"{given_name} {family_name}",
            given_name=given_name,
            family_name=family_name,
            emails=[f"{name}@example.com"],
            password="correct horse battery",
        )
        Backend.instance.save(user)
        Backend.instance.save(models.Group(display_name=group, members=[user]))
    client = models.Client(
        client_id="cueline",
        client_secret="TheSecretOfTheClient",
        client_name="Cueline",
        # A client on the loopback address is trusted, and needs no consent.
        client_uri="http://127.0.0.1",
        redirect_uris=[redirect_url],
        grant_types=["authorization_code"],
        response_types=["code"],
        token_endpoint_auth_method="client_secret_basic",
        scope=["openid", "profile", "email", "groups"],
    )
    Backend.instance.save(client)
    # Its ID tokens are for itself.
    client.audience = [client]
    Backend.instance.save(client)
make_server("127.0.0.1", port, app).serve_forever()
