"""Serves Canaille with one user, one group and one client: canaille.py PORT REDIRECT_URL"""

import sys
from wsgiref.simple_server import make_server

from canaille import create_app
from canaille.app import models
from canaille.backends import Backend

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
    user = models.User(
        user_name="alice",
        display_name="alice",
        formatted_name="Alice Doe",
        given_name="Alice",
        family_name="Doe",
        emails=["alice@example.com"],
        password="correct horse battery",
    )
    Backend.instance.save(user)
    Backend.instance.save(models.Group(display_name="cueline-operators", members=[user]))
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
