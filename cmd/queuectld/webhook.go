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
	"github.com/queuectl/queuectl/service"
)

// webhookName is what this program is called with to post a webhook.
const webhookName = "webhook"

// What a post may take, and how much of the answer is printed.
const (
	postTime   = 30 * time.Second
	maxAnswer  = 4 << 10 // bytes
	maxSecrets = 4 << 10 // bytes of the file
)

// postWebhook posts what it reads, once, as its environment says, and is the exit code: 0 where the receiver
// took it. It is told on out and errs.
func postWebhook(ctx context.Context, in io.Reader, out, errs io.Writer, env func(string) string) int {
	status, err := post(ctx, in, out, env)
	if err != nil {
		fmt.Fprintf(errs, "queuectl: post the webhook: %v\n", err)
		return 1
	}
	switch {
	case status >= 200 && status < 300:
		return 0
	case status == http.StatusGone:
		fmt.Fprintln(errs, "queuectl: the receiver no longer accepts this webhook (410 Gone); remove the webhook from the settings")
		return service.WebhookGone
	case status >= 300 && status < 400:
		fmt.Fprintln(errs, "queuectl: the receiver redirects to another address; redirects are not followed, so put the new address into the settings")
	}
	return 1
}

// post posts once, as Standard Webhooks says (https://github.com/standard-webhooks/standard-webhooks, version
// 1), and tells the status of the answer.
func post(ctx context.Context, in io.Reader, out io.Writer, env func(string) string) (status int, err error) {
	payload, err := io.ReadAll(io.LimitReader(in, queue.MaxStdin))
	if err != nil {
		return 0, err
	}
	signer, err := signerOf(env(service.WebhookSecret))
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, postTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, env(service.WebhookURL), bytes.NewReader(payload))
	if err != nil {
		return 0, withoutURL(err)
	}
	id, now := env(service.WebhookID), time.Now()
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
		return 0, withoutURL(err)
	}
	defer answer.Body.Close()
	fmt.Fprintln(out, answer.Status)
	io.Copy(out, io.LimitReader(answer.Body, maxAnswer)) // what the receiver says is worth to see, not to fail for
	return answer.StatusCode, nil
}

// withoutURL is an error without the URL that it is about, which may have a secret of its own.
func withoutURL(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}

// signerOf signs with what a file has: whsec_ and base64, as Standard Webhooks writes it.
func signerOf(path string) (*standardwebhooks.Webhook, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxSecrets+1))
	if err != nil {
		return nil, err
	}
	secret := strings.TrimSpace(string(text))
	if len(text) > maxSecrets {
		return nil, fmt.Errorf("the secret file %s is larger than %d bytes", path, maxSecrets)
	}
	if secret == "" {
		return nil, fmt.Errorf("the secret file %s is empty; it must contain whsec_ followed by at least 24 bytes in base64",
			path)
	}
	signer, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		return nil, fmt.Errorf("the secret file %s has no valid secret; it must contain whsec_ followed by at least 24 bytes in base64",
			path)
	}
	return signer, nil
}
