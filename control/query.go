package control

import (
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// FindReadOnlyMethod returns the method with this name if it changes nothing and sends a single answer. Otherwise
// it returns nil.
func FindReadOnlyMethod(name string) *Method {
	if m := findMethod(name); m != nil && m.readOnly {
		return m
	}
	return nil
}

// ParamsFromQuery converts the query of a URL to the parameters of a method. A parameter is written as NAME=VALUE. A
// list is written as one NAME=VALUE for each entry, and a map as one NAME=KEY=VALUE for each entry. ParamsFromQuery
// does not check whether the method accepts the values. Errors are *queue.Error with CodeInvalid.
func ParamsFromQuery(m *Method, query url.Values) (json.RawMessage, error) {
	properties, _ := paramsSchema(m.paramsType)["properties"].(schema)
	params := map[string]any{}
	for name, values := range query {
		is, known := properties[name].(schema)
		if !known {
			return nil, queue.InvalidFieldError(name, "unknown parameter of method %s", m.Name)
		}
		kinds := schemaTypes(is)
		switch {
		case slices.Contains(kinds, "object"):
			of := map[string]string{}
			for _, v := range values {
				key, value, found := strings.Cut(v, "=")
				if !found {
					return nil, queue.InvalidFieldError(name, "%q does not have the form NAME=VALUE", queue.ClipForMessage(v))
				}
				of[key] = value
			}
			params[name] = of
		case slices.Contains(kinds, "array"):
			params[name] = values
		case len(values) > 1:
			return nil, queue.InvalidFieldError(name, "the parameter is given %d times; give it once", len(values))
		case slices.Contains(kinds, "string"):
			params[name] = values[0]
		case json.Valid([]byte(values[0])):
			params[name] = json.RawMessage(values[0])
		default:
			return nil, queue.InvalidFieldError(name, "%q is not of the type %s", queue.ClipForMessage(values[0]),
				strings.Join(kinds, " or "))
		}
	}
	return json.Marshal(params)
}

// QueryParamSchema converts the schema of a parameter to the schema of its form in a query (see ParamsFromQuery).
func QueryParamSchema(paramSchema map[string]any) map[string]any {
	s := maps.Clone(paramSchema)
	delete(s, "description")
	kinds := schemaTypes(s)
	switch {
	case slices.Contains(kinds, "object"):
		s = schema{"type": "array", "items": schema{"type": "string", "pattern": `^[^=]+=[\s\S]*$`}}
		if most, ok := paramSchema["maxProperties"]; ok {
			s["maxItems"] = most
		}
	case slices.Contains(kinds, "array"):
		s["type"] = "array"
		delete(s, "pattern") // the pattern does not apply to a list
	case slices.Contains(kinds, "string"):
		s["type"] = "string"
	}
	return s
}

// schemaTypes returns the names of the JSON types that a schema allows.
func schemaTypes(s schema) []string {
	switch kinds := s["type"].(type) {
	case string:
		return []string{kinds}
	case []string:
		return kinds
	}
	return nil
}
