package mcp

import (
	"maps"
	"reflect"

	"github.com/queuectl/queuectl/control"
)

// Several tools use these bounds of parameters.
var (
	idListBounds   = map[string]any{"maxItems": maxJobIDsPerCall}
	waitTimeBounds = map[string]any{"maximum": maxJobWait.Seconds()}
)

// withSchemaBounds returns a copy of a parameter's schema with additional bounds. A new bound replaces an existing
// bound of the same kind.
func withSchemaBounds(parameterSchema, bounds map[string]any) map[string]any {
	s := maps.Clone(parameterSchema)
	maps.Copy(s, bounds)
	return s
}

// waitTimeSchema returns the schema of a parameter that limits how long a tool waits.
func waitTimeSchema(description string) map[string]any {
	s := withSchemaBounds(control.StructSchema(reflect.TypeFor[control.Duration]()), waitTimeBounds)
	delete(s, "minimum")
	s["exclusiveMinimum"], s["description"] = 0, description
	return s
}

// argumentSchema returns the JSON Schema of a tool's arguments. The schema is generated from the parameters of the
// tool's method. It includes a parameter that selects jobs of other users only if includeAllUsers is true.
func (t *tool) argumentSchema(methodSchema map[string]any, includeAllUsers bool) map[string]any {
	s := maps.Clone(methodSchema)
	properties := maps.Clone(methodSchema["properties"].(map[string]any))
	for _, name := range t.hiddenParams(includeAllUsers) {
		delete(properties, name)
	}
	for name, bounds := range t.paramBounds {
		properties[name] = withSchemaBounds(properties[name].(map[string]any), bounds.(map[string]any))
	}
	maps.Copy(properties, t.extraParamSchemas)
	s["properties"] = properties
	// Clients reject allOf at the top level of a tool's schema. So move it into "then" of a condition that is
	// always true.
	if all := s["allOf"]; all != nil {
		delete(s, "allOf")
		s["if"], s["then"] = typeSchema("object"), map[string]any{"allOf": all}
	}
	return s
}

// hiddenParams returns the parameters of the tool's method that the tool does not accept. Unless includeAllUsers is
// true, these include the parameter that selects jobs of other users.
func (t *tool) hiddenParams(includeAllUsers bool) []string {
	if includeAllUsers || t.apiMethod == "enqueue" { // in enqueue, the parameter user means the account that runs the job
		return t.omittedParams
	}
	return append([]string{userParamName}, t.omittedParams...)
}
