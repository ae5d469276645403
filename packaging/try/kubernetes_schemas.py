"""Writes Kubernetes' own schema as one strict JSON schema for each kind, as kubeconform reads them.

    kubernetes_schemas.py SWAGGER OUT        SWAGGER is api/openapi-spec/swagger.json of Kubernetes

Strict: a field that Kubernetes does not know is an error, which its own server drops in silence."""

import json
import sys
from pathlib import Path


def strict(schema):
    """A definition without what only describes, that takes no unknown field."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items() if key not in ("description", "x-kubernetes-group-version-kind")}
    if found.get("format") == "int-or-string":
        return {"type": ["string", "integer"]}
    if "properties" in schema and isinstance(schema["properties"], dict) and "additionalProperties" not in schema:
        found["additionalProperties"] = False
    return found


def reached(definitions, name):
    """The definitions that one stands on, itself among them."""
    found, left = {}, [name]
    while left:
        at = left.pop()
        if at in found:
            continue
        found[at] = definitions[at]
        left += [part.split('"')[0] for part in json.dumps(definitions[at]).split("#/definitions/")[1:]]
    return found


def main(swagger, out):
    whole = json.loads(Path(swagger).read_text(encoding="utf-8"))["definitions"]
    definitions = {name: strict(schema) for name, schema in whole.items()}
    definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"] = {"type": ["string", "number"]}
    written = 0
    for name, schema in whole.items():
        for kind in schema.get("x-kubernetes-group-version-kind", []):
            group = kind["group"].split(".")[0]
            file = "-".join(part for part in (kind["kind"], group, kind["version"]) if part).lower() + ".json"
            text = json.dumps({"$ref": f"#/definitions/{name}", "definitions": reached(definitions, name)})
            Path(out, file).write_text(text, encoding="utf-8")
            written += 1
    assert written > 100, "this is not Kubernetes' schema"


if __name__ == "__main__":
    main(*sys.argv[1:])
