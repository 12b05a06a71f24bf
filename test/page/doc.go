// Package page checks from outside the web page of the service.
package page
