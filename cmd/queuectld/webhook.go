package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/hooks"
)

// webhookArg is the argument that makes this program post a webhook.
const webhookArg = "webhook"

// These constants bound the time of one POST request, the part of the response that is printed, and the size of
// the file with the secret.
const (
	webhookPostTimeout      = 30 * time.Second
	maxPrintedResponseBytes = 4 << 10 // bytes
	maxSecretFileBytes      = 4 << 10 // bytes
)

// postWebhook reads a payload from payloadReader and posts it once to the URL in the environment. It prints the
// response to out and errors to errOut. The returned exit code is 0 if the receiver accepted the webhook.
func postWebhook(ctx context.Context, payloadReader io.Reader, out, errOut io.Writer, getenv func(string) string) int {
	status, err := postPayload(ctx, payloadReader, out, getenv)
	if err != nil {
		fmt.Fprintf(errOut, "queuectl: cannot post the webhook: %v\n", err)
		return 1
	}
	switch {
	case status >= 200 && status < 300:
		return 0
	case status == http.StatusGone:
		fmt.Fprintln(errOut, "queuectl: the receiver no longer accepts this webhook (410 Gone); remove the webhook "+
			"from the setting webhooks; its name is this job's label \"webhook\"")
		return hooks.WebhookReceiverGoneExitCode
	case status >= 300 && status < 400:
		fmt.Fprintln(errOut, "queuectl: the receiver redirects to another address, and webhooks do not follow "+
			"redirects; change the webhook's url in the setting webhooks; its name is this job's label \"webhook\"")
	}
	return 1
}

// postPayload posts the payload once, in the format of Standard Webhooks, version 1
// (https://github.com/standard-webhooks/standard-webhooks). It returns the HTTP status code of the response.
func postPayload(ctx context.Context, payloadReader io.Reader, out io.Writer,
	getenv func(string) string) (httpStatus int, err error) {
	payload, err := io.ReadAll(io.LimitReader(payloadReader, queue.MaxStdinBytes))
	if err != nil {
		return 0, err
	}
	signer, err := readWebhookSigner(getenv(hooks.WebhookSecretFileEnvName))
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, webhookPostTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, getenv(hooks.WebhookURLEnvName),
		bytes.NewReader(payload))
	if err != nil {
		return 0, removeURLFromError(err)
	}
	id, now := getenv(hooks.WebhookIDEnvName), time.Now()
	signature, err := signer.Sign(id, now, payload)
	if err != nil {
		return 0, err
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "User-Agent": "queuectl/" + cli.Version, standardwebhooks.HeaderWebhookID: id,
		standardwebhooks.HeaderWebhookTimestamp: fmt.Sprint(now.Unix()), standardwebhooks.HeaderWebhookSignature: signature,
	} {
		request.Header.Set(name, value)
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(request)
	if err != nil {
		return 0, removeURLFromError(err)
	}
	defer answer.Body.Close()
	fmt.Fprintln(out, answer.Status)
	// Ignore errors, because the response is printed only as information for the user.
	io.Copy(out, io.LimitReader(answer.Body, maxPrintedResponseBytes))
	return answer.StatusCode, nil
}

// removeURLFromError removes the URL from an error, because the URL may contain a secret.
func removeURLFromError(err error) error {
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		return urlErr.Err
	}
	return err
}

// readWebhookSigner returns a signer that uses the secret in a file. The secret has the format of Standard Webhooks:
// whsec_ followed by base64.
func readWebhookSigner(secretFile string) (*standardwebhooks.Webhook, error) {
	file, err := os.Open(secretFile)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxSecretFileBytes+1))
	if err != nil {
		return nil, err
	}
	secret := strings.TrimSpace(string(text))
	if len(text) > maxSecretFileBytes {
		return nil, fmt.Errorf("the secret file %s is larger than %d bytes", secretFile, maxSecretFileBytes)
	}
	if secret == "" {
		return nil, fmt.Errorf("the secret file %s is empty; it must contain whsec_ followed by at least 24 bytes in base64",
			secretFile)
	}
	signer, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		return nil, fmt.Errorf("the secret file %s has no valid secret; it must contain whsec_ followed by at "+
			"least 24 bytes in base64", secretFile)
	}
	return signer, nil
}
