package mcp

import (
	"maps"

	"github.com/queuectl/queuectl/control"
)

// output returns the schema of a tool's structured result. It derives the schema from the results
// of the API methods. Only the members that an abbreviated job always has are required. The members
// error and code belong to failed calls.
func (t *tool) output(results map[string]map[string]any) map[string]any {
	properties := map[string]any{}
	switch t.name {
	case "list":
		properties["jobs"], properties["next"] = jobsOf(results), map[string]any{"type": []string{"string", "null"}}
	case "wait":
		maps.Copy(properties, members(results["wait"]))
		properties["ended"] = jobsOf(results)
	case "run_and_wait":
		maps.Copy(properties, members(results["show"]))
	default:
		maps.Copy(properties, members(results[t.method]))
	}
	maps.Copy(properties, t.adds)
	properties["error"] = map[string]any{"type": []string{"string", "null"},
		"description": "error of the call, or of the last attempt of a job"}
	properties["code"] = map[string]any{"type": "string", "description": "error code, if the call failed"}
	return map[string]any{"type": "object", "properties": properties}
}

// jobsOf returns the schema of a list of jobs, which may be abbreviated.
func jobsOf(results map[string]map[string]any) map[string]any {
	jobs, _ := members(results["list"])["jobs"].(map[string]any)
	job, _ := jobs["items"].(map[string]any)
	return map[string]any{"type": "array", "items": map[string]any{
		"type": "object", "properties": members(job), "required": []string{"id", "state"},
	}}
}

func members(schema map[string]any) map[string]any {
	properties, _ := schema["properties"].(map[string]any)
	return properties
}

// resultsOf returns the schemas of the results of all methods, by method.
func resultsOf(methods []control.MethodSchema) map[string]map[string]any {
	results := map[string]map[string]any{}
	for _, m := range methods {
		results[m.Method] = m.Result
	}
	return results
}
