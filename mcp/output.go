package mcp

import (
	"cmp"
	"maps"
)

// outputSchema returns the schema of a tool's structured result. It derives the schema from resultSchemas, the schemas
// of the results of the API methods. It adds the members error and code, which a failed call returns.
func (t *tool) outputSchema(resultSchemas map[string]map[string]any) map[string]any {
	properties := maps.Clone(schemaProperties(resultSchemas[cmp.Or(t.resultAPIMethod, t.apiMethod)]))
	if t.jobListMember != "" {
		properties[t.jobListMember] = jobListSchema(resultSchemas)
	}
	maps.Copy(properties, t.extraResultSchemas)
	properties["error"] = map[string]any{"type": []string{"string", "null"},
		"description": "error of the call, or of the last attempt of a job"}
	properties["code"] = map[string]any{"type": "string", "description": "error code, if the call failed"}
	return map[string]any{"type": "object", "properties": properties}
}

// jobListSchema returns the schema of a list of jobs. Only the members id and state are required, because abbreviated
// jobs lack others.
func jobListSchema(resultSchemas map[string]map[string]any) map[string]any {
	jobs, _ := schemaProperties(resultSchemas["list"])["jobs"].(map[string]any)
	job, _ := jobs["items"].(map[string]any)
	return map[string]any{"type": "array", "items": map[string]any{
		"type": "object", "properties": schemaProperties(job), "required": []string{"id", "state"},
	}}
}

func schemaProperties(schema map[string]any) map[string]any {
	properties, _ := schema["properties"].(map[string]any)
	return properties
}
