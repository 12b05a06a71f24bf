package mcp

import (
	"maps"
	"reflect"

	"github.com/queuectl/queuectl/control"
)

// Bounds of tools.
var (
	fewIDs       = map[string]any{"maxItems": mostNamed}
	atMostAnHour = map[string]any{"maximum": mostWaits.Seconds()}
)

// bounded returns the schema of a parameter with other bounds.
func bounded(parameter, bounds map[string]any) map[string]any {
	s := maps.Clone(parameter)
	maps.Copy(s, bounds)
	return s
}

// waiting is the schema of the parameter that says how long a tool waits.
func waiting(description string) map[string]any {
	s := bounded(control.ResultSchema(reflect.TypeFor[control.Span]()), atMostAnHour)
	delete(s, "minimum")
	s["exclusiveMinimum"], s["description"] = 0, description
	return s
}

// schema returns the JSON Schema of a tool's arguments, from the schema of its method's parameters.
func (t *tool) schema(method map[string]any, others bool) map[string]any {
	s := maps.Clone(method)
	properties := maps.Clone(method["properties"].(map[string]any))
	for _, name := range t.lacks(others) {
		delete(properties, name)
	}
	for name, bounds := range t.bounds {
		properties[name] = bounded(properties[name].(map[string]any), bounds.(map[string]any))
	}
	maps.Copy(properties, t.with)
	s["properties"] = properties
	if all := s["allOf"]; all != nil { // which clients refuse at the top of a tool's schema, unless it is in a condition
		delete(s, "allOf")
		s["if"], s["then"] = typed("object"), map[string]any{"allOf": all}
	}
	return s
}

// lacks are the parameters of its method that a tool does not take.
func (t *tool) lacks(others bool) []string {
	if others || t.method == "enqueue" { // whose user is the account to run as
		return t.without
	}
	return append([]string{othersMember}, t.without...)
}
