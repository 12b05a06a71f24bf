package dashboard

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// newTestServer returns a server with the default configuration. The server does not listen on a socket.
func newTestServer() *Server {
	s := &Server{}
	s.config.Store(&Config{})
	return s
}

// The OpenAPI description says how labels are written in a query, which parameters are required, which values
// they accept, and how a request is authorized.
func TestOpenAPIDescribesQueriesAndSecurity(t *testing.T) {
	w := httptest.NewRecorder()
	if err := newTestServer().serveOpenAPI(w, httptest.NewRequest("GET", "http://localhost/api/openapi.json", nil),
		nil); err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]struct {
			Get struct {
				Parameters []struct {
					Name, Style       string
					Required, Explode bool
					Schema            map[string]any
				}
				Responses map[string]any
			}
		}
		Components struct {
			SecuritySchemes map[string]struct{ Type, In, Name string }
		}
		Security []map[string][]string
	}
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	scheme := doc.Components.SecuritySchemes["session"]
	if scheme.Type != "apiKey" || scheme.In != "cookie" || scheme.Name != "queuectl" {
		t.Errorf("security scheme: %+v", scheme)
	}
	if len(doc.Security) != 1 || doc.Security[0]["session"] == nil {
		t.Errorf("security: %v", doc.Security)
	}
	found := 0
	for _, p := range doc.Paths["/api/list"].Get.Parameters {
		switch p.Name {
		case "label":
			items, _ := p.Schema["items"].(map[string]any)
			if found++; p.Schema["type"] != "array" || !p.Explode || p.Style != "form" || items["pattern"] != `^[^=]+=[\s\S]*$` {
				t.Errorf("label: %+v", p)
			}
		case "limit":
			if found++; p.Schema["type"] != "integer" || p.Schema["minimum"] != 1.0 || p.Schema["maximum"] != 1000.0 {
				t.Errorf("limit: %+v", p)
			}
		}
	}
	for _, p := range doc.Paths["/api/show"].Get.Parameters {
		if p.Name == "id" {
			if found++; !p.Required || p.Schema["type"] != "string" {
				t.Errorf("id: %+v", p)
			}
		}
	}
	if found != 3 {
		t.Errorf("found %d of the parameters label, limit and id", found)
	}
	if doc.Paths["/api/list"].Get.Responses["401"] == nil {
		t.Error("list has no response without a session")
	}
}

// If a path accepts only another HTTP method, the reply is 405 and names that method (RFC 9110, section 15.5.6). If the
// path does not exist, the reply is 404.
func TestWrongHTTPMethodIsNotAllowed(t *testing.T) {
	mux := http.NewServeMux()
	newTestServer().registerRoutes(mux)
	for _, c := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"POST", "/api/list", 405, "GET, HEAD"}, {"DELETE", "/api/summary", 405, "GET, HEAD"},
		{"TRACE", "/api/events", 405, "GET, HEAD"},
		{"PUT", "/api/openapi.json", 405, "GET, HEAD"}, {"PUT", "/api/nosuch", 404, ""}, {"POST", "/api/enqueue", 404, ""},
		{"GET", "/api/nosuch/deeper", 404, ""}, {"PUT", "/jobs", 405, "GET, HEAD"},
		{"PUT", "/jobs/1", 405, "GET, HEAD, POST"}, {"PUT", "/assets", 404, ""},
	} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(c.method, "http://localhost"+c.path, nil))
		if w.Code != c.status || w.Header().Get("Allow") != c.allow {
			t.Errorf("%s %s: got %d, Allow %q; want %d, %q", c.method, c.path, w.Code, w.Header().Get("Allow"), c.status,
				c.allow)
		}
	}
	r := httptest.NewRequest("GET", "http://localhost/bulk", nil)
	r.Method = "DELETE"
	if got := strings.Join(acceptedHTTPMethods(mux, r), ", "); got != "GET, HEAD, POST" {
		t.Errorf("methods of /bulk: %s", got)
	}
}
