package dashboard

import (
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/queuectl/queuectl/control"
)

// serveOpenAPI replies with a description of all paths below /api in the format OpenAPI 3.1.
func (s *Server) serveOpenAPI(w http.ResponseWriter, r *http.Request, _ *visitor) error {
	if err := checkParamNames(r.URL.Query()); err != nil {
		return err
	}
	paths, schemas := map[string]any{}, map[string]any{"Error": errorSchema}
	add := func(name, summary string, parameters []any, answer map[string]any) {
		paths["/api/"+name] = map[string]any{"get": map[string]any{
			"operationId": name, "summary": summary, "parameters": parameters, "responses": withErrors(answer),
		}}
	}
	for _, m := range control.Schemas() {
		if control.ReadOnlyMethod(m.Method) == nil {
			continue
		}
		schemas[m.Method] = m.Result
		add(m.Method, fmt.Sprintf("the protocol method %q; it requires the right %q", m.Method, m.Right),
			querySchema(m.Params), answerSchema(jsonType, schemaRef(m.Method)))
	}
	since := map[string]any{"name": "since", "in": "query",
		"description": "number of the last event that you have received",
		"schema":      map[string]any{"type": "integer", "minimum": 0}}
	add("summary", `data of the overview page, in the form of the result of the protocol method "screen"`, []any{},
		answerSchema(jsonType, schemaRef("screen")))
	add("events", "events as they happen, as server-sent events; the response does not end", []any{since},
		answerSchema("text/event-stream", map[string]any{"type": "string"}))
	add("openapi.json", "this description", []any{}, answerSchema(jsonType, map[string]any{"type": "object"}))
	writeJSON(w, http.StatusOK, map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{"title": "queuectl", "version": "1",
			"description": "The read-only methods of the protocol. " +
				"A session cookie authorizes each request. queuectl web open prints a link that starts a session."},
		"paths": paths,
		"components": map[string]any{"schemas": schemas, "securitySchemes": map[string]any{
			"session": map[string]any{"type": "apiKey", "in": "cookie", "name": s.sessionCookie(r),
				"description": "The session cookie."},
		}},
		"security": []any{map[string]any{"session": []string{}}},
	})
	return nil
}

const jsonType = "application/json"

func schemaRef(schema string) map[string]any {
	return map[string]any{"$ref": "#/components/schemas/" + schema}
}

func answerSchema(contentType string, schema map[string]any) map[string]any {
	return map[string]any{"description": "the result",
		"content": map[string]any{contentType: map[string]any{"schema": schema}}}
}

// withErrors returns the responses of an operation: its answer, and the errors by status.
func withErrors(answer map[string]any) map[string]any {
	responses := map[string]any{"200": answer}
	for status, description := range map[string]string{
		"400": "invalid parameter", "401": "no session", "403": "not permitted", "404": "not found",
		"default": "another error",
	} {
		responses[status] = map[string]any{"description": description,
			"content": map[string]any{jsonType: map[string]any{"schema": schemaRef("Error")}}}
	}
	return responses
}

// querySchema describes the parameters of a method in the form in which the query of a URL contains
// them; see control.QueryParams.
func querySchema(params map[string]any) []any {
	query := []any{}
	properties, _ := params["properties"].(map[string]any)
	required, _ := params["required"].([]string)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		property, _ := properties[name].(map[string]any)
		query = append(query, map[string]any{
			"name": name, "in": "query", "required": slices.Contains(required, name), "description": property["description"],
			"schema": control.QuerySchema(property), "style": "form", "explode": true,
		})
	}
	return query
}

var errorSchema = map[string]any{"type": "object", "required": []string{"error"}, "properties": map[string]any{
	"error": map[string]any{"type": "object", "required": []string{"code", "message"}, "properties": map[string]any{
		"code": map[string]any{"type": "string"}, "message": map[string]any{"type": "string"},
	}},
}}
