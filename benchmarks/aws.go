package benchmarks

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

func awsClient(rt http.RoundTripper, s settings) sender {
	return sendAWS(rt, retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts = s.attempts
		o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return s.wait, nil })
	}))
}

// sendAWS sends as the generated clients of the SDK do: through a stack that is
// made for the one operation, with as few steps in it as it takes.
func sendAWS(rt http.RoundTripper, retryer aws.RetryerV2) sender {
	hc := &http.Client{Transport: rt}
	return func(m *message) (int, error) {
		stack := middleware.NewStack("Send", smithyhttp.NewStackRequest)
		err := stack.Serialize.Add(middleware.SerializeMiddlewareFunc("serialize", m.serialize), middleware.After)
		if err == nil {
			err = stack.Finalize.Add(retry.NewAttemptMiddleware(retryer, smithyhttp.RequestCloner), middleware.After)
		}
		if err == nil {
			err = stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("OperationDeserializer", deserialize), middleware.After)
		}
		if err != nil {
			return 0, err
		}
		handler := middleware.DecorateHandler(smithyhttp.NewClientHandlerWithOptions(hc), stack)
		out, _, err := handler.Handle(context.Background(), m)
		if err != nil {
			return 0, err
		}
		resp := out.(*smithyhttp.Response) //nolint:errcheck,forcetypeassert // deserialize returns nothing else
		return finish(resp.Response, nil)
	}
}

func (m *message) serialize(ctx context.Context, in middleware.SerializeInput, next middleware.SerializeHandler) (
	out middleware.SerializeOutput, md middleware.Metadata, err error,
) {
	req := in.Request.(*smithyhttp.Request) //nolint:errcheck,forcetypeassert // it is what the stack makes
	req.Method = m.method
	if req.URL, err = url.Parse(m.url); err != nil {
		return out, md, err
	}
	if p := m.body; p != nil {
		var body io.Reader = bytes.NewReader(p.data)
		if p.path != "" {
			file, err := os.Open(p.path)
			if err != nil {
				return out, md, err
			}
			defer closeFile(file)
			body = file
		}
		if req, err = req.SetStream(body); err != nil {
			return out, md, err
		}
		req.ContentLength = p.size
		req.Header["Content-Type"] = []string{"application/json"}
	}
	in.Request = req
	return next.HandleSerialize(ctx, in)
}

// deserialize makes an error of a status, which is what the retryer looks at.
func deserialize(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (
	out middleware.DeserializeOutput, md middleware.Metadata, err error,
) {
	out, md, err = next.HandleDeserialize(ctx, in)
	if err != nil {
		return out, md, err
	}
	resp := out.RawResponse.(*smithyhttp.Response) //nolint:errcheck,forcetypeassert // of the client handler
	if resp.StatusCode >= http.StatusInternalServerError {
		err = &smithyhttp.ResponseError{Response: resp, Err: errStatus}
		smithyhttp.CloseResponseBody(ctx, resp, false, err)
		return out, md, err
	}
	out.Result = resp
	return out, md, nil
}
