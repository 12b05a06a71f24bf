package mcp

import (
	"maps"

	"github.com/queuectl/queuectl/control"
)

// outputSchema returns the schema of a tool's structured result. It derives the schema from the results
// of the API methods. Only the members that an abbreviated job always has are required. The members
// error and code belong to failed calls.
func (t *tool) outputSchema(results map[string]map[string]any) map[string]any {
	properties := map[string]any{}
	switch t.name {
	case "list":
		properties["jobs"], properties["next"] = jobListSchema(results), map[string]any{"type": []string{"string", "null"}}
	case "wait":
		maps.Copy(properties, schemaMembers(results["wait"]))
		properties["ended"] = jobListSchema(results)
	case "run_and_wait":
		maps.Copy(properties, schemaMembers(results["show"]))
	default:
		maps.Copy(properties, schemaMembers(results[t.method]))
	}
	maps.Copy(properties, t.extraResults)
	properties["error"] = map[string]any{"type": []string{"string", "null"},
		"description": "error of the call, or of the last attempt of a job"}
	properties["code"] = map[string]any{"type": "string", "description": "error code, if the call failed"}
	return map[string]any{"type": "object", "properties": properties}
}

// jobListSchema returns the schema of a list of jobs, which may be abbreviated.
func jobListSchema(results map[string]map[string]any) map[string]any {
	jobs, _ := schemaMembers(results["list"])["jobs"].(map[string]any)
	job, _ := jobs["items"].(map[string]any)
	return map[string]any{"type": "array", "items": map[string]any{
		"type": "object", "properties": schemaMembers(job), "required": []string{"id", "state"},
	}}
}

func schemaMembers(schema map[string]any) map[string]any {
	properties, _ := schema["properties"].(map[string]any)
	return properties
}

// resultSchemas returns the schemas of the results of all methods, by method.
func resultSchemas(methods []control.MethodSchema) map[string]map[string]any {
	results := map[string]map[string]any{}
	for _, m := range methods {
		results[m.Method] = m.Result
	}
	return results
}
