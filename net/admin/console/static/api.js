// Calls of the HTTP API of this broker. Errors have the words of the broker.

export const settings = { cluster_id: "", node_id: -1, can_change: false, has_registry: false, is_secure: false };

export class ApiError extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

async function call(method, path, body) {
  const options = { method, headers: {}, cache: "no-store" };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response;
  try { response = await fetch(path, options); } catch { throw new ApiError(0, "this broker does not answer"); }
  const text = await response.text();
  let answer = null;
  try { answer = text ? JSON.parse(text) : null; } catch { throw new ApiError(response.status, text.slice(0, 300)); }
  if (!response.ok) throw new ApiError(response.status, (answer && answer.message) || `HTTP ${response.status}`);
  return answer;
}

const path = (parts) => `/v3/clusters/${[settings.cluster_id, ...parts].map(encodeURIComponent).join("/")}`;

export async function loadSettings() { Object.assign(settings, await call("GET", "/console/settings")); }
export const get = (...parts) => call("GET", path(parts));
export const query = (parts, parameters) => call("GET", `${path(parts)}?${new URLSearchParams(parameters)}`);
export const post = (parts, body) => call("POST", path(parts), body);
export const put = (parts, body) => call("PUT", path(parts), body);
export const remove = (...parts) => call("DELETE", path(parts));
export const removeWith = (parts, body) => call("DELETE", path(parts), body);
export const streamUrl = () => `${path(["overview", "stream"])}`;
