
"use strict";
const byId = (id) => document.getElementById(id);
// Text is always added as text, never as markup.
function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}
const REFERENCE = "#/components/schemas/";
function schemaLink(name) {
  return element("a", { href: "#schema-" + name }, name);
}
// The JSON of a schema, in which the names of other schemas are links.
function shown(schema) {
  const pre = element("pre", {});
  const parts = JSON.stringify(schema, null, 2).split(/"#\/components\/schemas\/(\w+)"/);
  parts.forEach((part, index) => pre.append(index % 2 ? schemaLink(part) : part));
  return pre;
}
function brief(schema) {
  if (!schema) return "";
  if (schema.$ref) return schemaLink(schema.$ref.replace(REFERENCE, ""));
  if (schema.items && schema.items.$ref) {
    return element("span", {}, "list of ", schemaLink(schema.items.$ref.replace(REFERENCE, "")));
  }
  return element("code", {}, JSON.stringify(schema));
}
function table(heads, rows) {
  const head = element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)));
  const body = rows.map((row) => element("tr", {}, ...row.map((cell) => element("td", {}, cell))));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}
function resolved(api, response) {
  if (!response.$ref) return response;
  return api.components.responses[response.$ref.split("/").pop()];
}
function contents(content) {
  return Object.entries(content || {}).map(([type, media]) =>
    element("div", {}, element("code", {}, type), " ", brief(media.schema)));
}
function operation(api, path, method, spec) {
  const parts = [];
  if (spec.description) parts.push(element("p", {}, spec.description));
  parts.push(element("p", {}, "Operation ", element("code", {}, spec.operationId)));
  if (spec.parameters) {
    const rows = spec.parameters.map((one) => [
      element("code", {}, one.name), one.in + (one.required ? ", required" : ""), brief(one.schema), one.description || "",
    ]);
    parts.push(element("h4", {}, "Parameters"), table(["name", "in", "schema", "meaning"], rows));
  }
  if (spec.requestBody) {
    parts.push(element("h4", {}, spec.requestBody.required ? "Body, required" : "Body"), ...contents(spec.requestBody.content));
  }
  const answers = Object.entries(spec.responses).map(([status, given]) => {
    const response = resolved(api, given);
    return [element("code", {}, status), response.description || "", element("div", {}, ...contents(response.content))];
  });
  parts.push(element("h4", {}, "Responses"), table(["status", "meaning", "content"], answers));
  const title = element("summary", {},
    element("span", { className: "method" }, method), element("span", { className: "path" }, path), " ", spec.summary || "");
  if (spec.security && spec.security.length === 0) title.append(" ", element("span", { className: "open" }, "no token"));
  const details = element("details", { id: spec.operationId }, title, ...parts);
  details.dataset.text = [method, path, spec.operationId, spec.summary, spec.description].join(" ").toLowerCase();
  return details;
}
function show(api) {
  byId("about").textContent = "Version " + api.info.version + ". " + api.info.description;
  for (const tag of api.tags) {
    const section = element("section", {}, element("h2", {}, tag.name), element("p", {}, tag.description));
    for (const [path, item] of Object.entries(api.paths)) {
      for (const [method, spec] of Object.entries(item)) {
        if (spec.tags.includes(tag.name)) section.append(operation(api, path, method, spec));
      }
    }
    byId("operations").append(section);
  }
  for (const [name, schema] of Object.entries(api.components.schemas)) {
    const details = element("details", { id: "schema-" + name }, element("summary", {}, name), shown(schema));
    details.dataset.text = name.toLowerCase() + " " + JSON.stringify(schema).toLowerCase();
    byId("schemas").append(details);
  }
}
function search() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const details of document.querySelectorAll("details")) {
    details.hidden = !words.every((word) => details.dataset.text.includes(word));
    count += details.hidden ? 0 : 1;
  }
  for (const section of document.querySelectorAll("section")) {
    section.hidden = !section.querySelector("details:not([hidden])");
  }
  byId("found").textContent = words.length ? count + " found" : "";
}
// A link to an operation or a schema opens it.
function open() {
  const target = byId(decodeURIComponent(location.hash.slice(1)));
  if (target && target.tagName === "DETAILS") {
    target.hidden = false;
    target.closest("section").hidden = false;
    target.open = true;
    target.scrollIntoView();
  }
}
fetch("openapi.json")
  .then((response) => (response.ok ? response.json() : Promise.reject(new Error("status " + response.status))))
  .then((api) => {
    show(api);
    byId("search").addEventListener("input", search);
    window.addEventListener("hashchange", open);
    open();
  })
  .catch((error) => {
    byId("about").textContent = "The OpenAPI document could not be read: " + error.message;
  });
