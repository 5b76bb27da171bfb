// A certified OAuth server, that gives tokens to clients for their own credentials.
//
// node server.mjs CLEAR_PORT TLS_PORT KEY CERTIFICATE: the same server at both ports. The client "brief" gets
// tokens that hold for six seconds, others for ten minutes.
import http from "node:http";
import https from "node:https";
import { readFileSync } from "node:fs";
import { generateKeyPairSync } from "node:crypto";
import Provider from "oidc-provider";

const [clearPort, tlsPort, key, certificate] = process.argv.slice(2);
const { privateKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
const client = (client_id) => ({
  client_id,
  client_secret: `${client_id}-client-secret`,
  grant_types: ["client_credentials"],
  redirect_uris: [],
  response_types: [],
});

const provider = new Provider(`https://localhost:${tlsPort}`, {
  clients: [client("tidemill"), client("brief"), client("stranger")],
  jwks: { keys: [{ ...privateKey.export({ format: "jwk" }), alg: "RS256", use: "sig", kid: "one" }] },
  scopes: ["records"],
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => "urn:kafka",
      getResourceServerInfo: (ctx, resource, who) => ({
        scope: "records",
        audience: who.clientId === "stranger" ? "elsewhere" : "kafka",
        accessTokenTTL: who.clientId === "brief" ? 6 : 600,
        accessTokenFormat: "jwt",
      }),
    },
  },
});
provider.on("server_error", (ctx, error) => console.error(error));

http.createServer(provider.callback()).listen(Number(clearPort), "127.0.0.1", () => {
  https
    .createServer({ key: readFileSync(key), cert: readFileSync(certificate) }, provider.callback())
    .listen(Number(tlsPort), "127.0.0.1", () => console.log("ready"));
});
