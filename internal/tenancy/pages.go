package tenancy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
)

const (
	// longestPage is how many objects are listed at a time, and largestPage in how many bytes: where they come to more, fewer are asked for.
	longestPage = 500
	largestPage = 4 << 20
)

// errLargePage ends the answer to a page that is too large.
var errLargePage = errors.New("the page is too large")

// pageKey marks the context of a request whose answer is bounded.
type pageKey struct{}

// Pages reads the lists that caches begin with in pages, and takes off the objects of each what is not kept before it reads the next: an API server that
// does not stream them gives all objects of a cluster in one answer, which takes as much memory as those who may create some like. One page is read at a time,
// whatever it lists.
type Pages struct {
	turn chan struct{}
}

// NewPages reads the lists of one process. Bound has to stand between its client and the API server, or pages are as large as they come.
func NewPages() *Pages { return &Pages{turn: make(chan struct{}, 1)} }

// Of has the lists of a kind read in pages; strip takes off what is not kept, and may be run again on what it has left.
func (p *Pages) Of(kind toolscache.ListerWatcher, strip toolscache.TransformFunc) toolscache.ListerWatcher {
	whole := toolscache.ToListerWatcherWithContext(kind)
	return &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return p.list(ctx, whole, strip, options)
		},
		WatchFuncWithContext: whole.WatchWithContext,
	}
}

// list gives all pages as one list. They are of one moment; where the API server has forgotten that before the last of them, the error says so, and
// whoever asked begins anew.
func (p *Pages) list(
	ctx context.Context, from toolscache.ListerWatcherWithContext, strip toolscache.TransformFunc, options metav1.ListOptions,
) (runtime.Object, error) {
	// By any version the API server answers from its memory, and minds no limit.
	options.ResourceVersion, options.ResourceVersionMatch, options.Continue, options.Limit = "", "", "", longestPage
	var all []runtime.Object
	for {
		page, items, err := p.page(ctx, from, strip, options)
		if errors.Is(err, errLargePage) && options.Limit > 1 {
			options.Limit = max(1, options.Limit/8)
			continue
		}
		if err != nil {
			return nil, err
		}
		metadata, err := meta.ListAccessor(page)
		if err != nil {
			return nil, fmt.Errorf("a page of a list: %w", err)
		}
		all = append(all, items...)
		if options.Continue = metadata.GetContinue(); options.Continue == "" {
			metadata.SetRemainingItemCount(nil)
			if err := meta.SetList(page, all); err != nil {
				return nil, fmt.Errorf("join the pages of a list: %w", err)
			}
			return page, nil
		}
		options.Limit = min(longestPage, 2*options.Limit)
	}
}

// page reads one page, of which it leaves what is kept. One of a single object may be as large as the API server allows.
func (p *Pages) page(
	ctx context.Context, from toolscache.ListerWatcherWithContext, strip toolscache.TransformFunc, options metav1.ListOptions,
) (page runtime.Object, items []runtime.Object, err error) {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return nil, nil, ctx.Err() //nolint:wrapcheck // as it is
	}
	if options.Limit > 1 {
		ctx = context.WithValue(ctx, pageKey{}, true)
	}
	if page, err = from.ListWithContext(ctx, options); err != nil {
		return nil, nil, err //nolint:wrapcheck // The cache knows the errors of the API server.
	}
	if items, err = meta.ExtractList(page); err != nil {
		return nil, nil, fmt.Errorf("a page of a list: %w", err)
	}
	for i := range items {
		kept, err := strip(items[i])
		if err != nil {
			return nil, nil, err
		}
		items[i] = kept.(runtime.Object) //nolint:forcetypeassert // What is left of an object is one.
	}
	return page, items, nil
}

// BoundPages has the client of a cluster give up the answer to a page that is too large.
func BoundPages(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return boundPages{next} })
}

type boundPages struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b boundPages) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(request)
	if err != nil || request.Context().Value(pageKey{}) == nil {
		return response, err //nolint:wrapcheck // as it is
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, largestPage+1))
	_ = response.Body.Close()
	switch {
	case err != nil:
		return nil, err //nolint:wrapcheck // as it is
	case len(body) > largestPage:
		return nil, errLargePage
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, nil
}

// WrappedRoundTripper is for who looks for the transport below.
func (b boundPages) WrappedRoundTripper() http.RoundTripper { return b.next }
