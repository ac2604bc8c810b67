package v1alpha1

// Handler is what a worker calls with each message.
//
// +kubebuilder:validation:XValidation:rule="[has(self.http), has(self.exec), has(self.process), has(self.inProcess)].filter(x, x).size() == 1",message="a handler needs exactly one of: http, exec, process, inProcess"
// +kubebuilder:validation:XValidation:rule="has(self.image) || !(has(self.exec) || has(self.process) || has(self.inProcess))",message="exec, process and inProcess run in the team's own image: image names it"
type Handler struct {
	// image of the team's own program. The worker runs in it for exec, process and inProcess. For http it is run beside the
	// worker, in a container named "handler"; left out, the URL is served by something else. `redrive run` does not use it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^[!-~]+$')",message="image must be the name of an image, without spaces"
	Image *string `json:"image,omitempty"`

	// http posts each message to a URL.
	// +optional
	HTTP *HTTPHandler `json:"http,omitempty"`

	// exec starts a command for each message.
	// +optional
	Exec *ExecHandler `json:"exec,omitempty"`

	// process hands messages to a pool of processes that stay.
	// +optional
	Process *ProcessHandler `json:"process,omitempty"`

	// inProcess is for an image whose entrypoint is a Go program that is itself the worker: see the package
	// redrive.dev/redrive/handler/run.
	// +optional
	InProcess *InProcessHandler `json:"inProcess,omitempty"`
}

// HTTPFormat is how a message is put into a request.
//
// +kubebuilder:validation:Enum=Raw;CloudEvents
type HTTPFormat string

const (
	// HTTPFormatRaw posts the body as it is, with the message's headers and Redrive's own beside it.
	HTTPFormatRaw HTTPFormat = "Raw"
	// HTTPFormatCloudEvents is Raw with the attributes of a CloudEvent in binary content mode.
	HTTPFormatCloudEvents HTTPFormat = "CloudEvents"
)

// HTTPHandler posts each message to a URL. A status of 200 to 299 is success; everything else, and no answer at all, is
// a failure that the retry policy decides on.
//
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || !isURL(self.url) || url(self.url).getScheme() == 'https'",message="tls is for an https URL"
type HTTPHandler struct {
	// url that gets the POST requests.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHostname() != ''",message="url must be an absolute http or https URL"
	// +kubebuilder:validation:XValidation:rule="!isURL(self) || url(self).getPort() == '' || (url(self).getPort().size() < 6 && int(url(self).getPort()) > 0 && int(url(self).getPort()) < 65536)",message="url must have a port of 1 to 65535"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[^/?#]*//[^/?#]*@')",message="url must not hold a user name or password: headersSecretRef is for credentials"
	URL string `json:"url"`

	// unixSocket is the path of a socket in the pod that is connected to in place of the URL's host and port. With image, its
	// folder is one that both containers share.
	// +optional
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=107
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/[A-Za-z0-9._-]*[A-Za-z0-9_-][A-Za-z0-9._-]*)+$')",message="unixSocket must be an absolute path of letters, digits, '.', '_' and '-', without '..'"
	UnixSocket *string `json:"unixSocket,omitempty"`

	// format of the request: Raw, or CloudEvents for binary content mode. Left out, it is Raw.
	// +optional
	Format *HTTPFormat `json:"format,omitempty"`

	// headers says which headers of a message are headers of the request, and under which names. Left out, all are, with
	// Redrive-Header- before their names, as long as they are at most 64 and 8 KiB.
	// +optional
	Headers *HTTPHeaders `json:"headers,omitempty"`

	// tls says whom an https URL is trusted by. Left out, it is the certificate authorities of the image.
	// +optional
	TLS *HTTPTLS `json:"tls,omitempty"`

	// keepAlive lets connections serve one request after the other. With false each request has a connection of its own, so that no answer
	// of an HTTP/1.1 server can be taken for that of another request. Left out, it is true.
	// +optional
	KeepAlive *bool `json:"keepAlive,omitempty"`

	// headersSecretRef names a Secret of this namespace each key of which is a header of every request, such as
	// Authorization. A changed Secret is taken over without a restart.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.name.matches('^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$')",message="headersSecretRef must name a Secret"
	HeadersSecretRef *LocalReference `json:"headersSecretRef,omitempty"`

	// readinessURL is asked with GET before messages are taken from the queues, and again and again: while it does not answer
	// with 200 to 299, none are, and no attempt is counted. unixSocket, tls and headersSecretRef hold for it too where it has
	// the scheme, host and port of url. Left out, the handler is taken to be ready.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHostname() != ''",message="readinessURL must be an absolute http or https URL"
	// +kubebuilder:validation:XValidation:rule="!isURL(self) || url(self).getPort() == '' || (url(self).getPort().size() < 6 && int(url(self).getPort()) > 0 && int(url(self).getPort()) < 65536)",message="readinessURL must have a port of 1 to 65535"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[^/?#]*//[^/?#]*@')",message="readinessURL must not hold a user name or password"
	ReadinessURL *string `json:"readinessURL,omitempty"` //nolint:tagliatelle // as Kubernetes spells initialisms: clusterIP
}

// HTTPHeaders says which headers of a message are headers of the request.
// +kubebuilder:validation:XValidation:rule="!has(self.prefix) || self.prefix != 'None' || has(self.allow)",message="with the prefix None allow must name the headers"
type HTTPHeaders struct {
	// allow are the names of the headers that go on, case included; with an asterisk at the end all that begin so. Left out, all go on.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:Pattern="^[^*]*[*]?$"
	Allow []string `json:"allow,omitempty"`

	// prefix stands before their names: words of letters and digits, with a dash after each. None is for no prefix; what a request says of
	// itself, such as Host, Authorization and Origin, is left out then, even where allow names it. Left out, it is Redrive-Header-.
	// +optional
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:Pattern="^(None|([A-Za-z][A-Za-z0-9]*-)+)$"
	// +kubebuilder:validation:XValidation:rule="self == 'Redrive-Header-' || !self.matches('^(?i)(redrive|proxy|ce|cloudevents|sec|if|accept|access-control|content|x-forwarded)-')",message="prefix must not begin like headers that a request has a meaning for, such as Redrive-, Proxy-, Sec-, If-, Accept-, Content- and X-Forwarded-"
	Prefix *string `json:"prefix,omitempty"`
}

// HTTPTLS says whom an https URL is trusted by.
type HTTPTLS struct {
	// caSecretRef names the key of a Secret of this namespace that holds certificates in PEM. They stand in place of the
	// image's own. Changed ones are taken over without a restart.
	// +required
	CASecretRef SecretKeyReference `json:"caSecretRef"`
}

// SecretKeyReference names a key of a Secret of the same namespace.
type SecretKeyReference struct {
	// name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// key in it. Left out, it is ca.crt.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	Key *string `json:"key,omitempty"`
}

// ExecHandler starts a command for each message: the body is its standard input, exit code 0 is success.
type ExecHandler struct {
	// command and its arguments, without a shell.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	// +kubebuilder:validation:items:Pattern=`^[^\x00]*$`
	// +kubebuilder:validation:XValidation:rule="self[0] != ''",message="command must begin with the name of a program"
	Command []string `json:"command"`
}

// ProcessHandler hands messages to processes that stay, over their standard input and output.
type ProcessHandler struct {
	// command and its arguments, without a shell. It speaks Redrive's process protocol.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	// +kubebuilder:validation:items:Pattern=`^[^\x00]*$`
	// +kubebuilder:validation:XValidation:rule="self[0] != ''",message="command must begin with the name of a program"
	Command []string `json:"command"`

	// processes is the largest number of them in a pod, and one more while one is replaced; they are started as they are needed.
	// Left out, it is the worker's concurrency.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Processes *int32 `json:"processes,omitempty"`

	// startTimeout is the time that a process has to say hello, 100ms to 15m. Left out, it is 30s.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('100ms') && duration(self) <= duration('15m')",message="startTimeout is between 100ms and 15m"
	StartTimeout *Duration `json:"startTimeout,omitempty"`

	// recycle says when a process is replaced by a new one, between two messages. Left out, it never is.
	// +optional
	Recycle *Recycle `json:"recycle,omitempty"`
}

// Recycle says when a process is replaced by a new one: whichever comes first.
//
// +kubebuilder:validation:XValidation:rule="has(self.messages) || has(self.age) || has(self.memory)",message="recycle needs messages, age or memory"
type Recycle struct {
	// messages that a process handles.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000
	Messages *int64 `json:"messages,omitempty"`

	// age of a process, 1s to 720h.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('720h')",message="age is between 1s and 720h"
	Age *Duration `json:"age,omitempty"`

	// memory that a process has resident, such as 256Mi. Linux only.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,5}(Mi|Gi)$`
	Memory *string `json:"memory,omitempty"`
}

// InProcessHandler has no settings: the program knows what it does. No rule may look at an object without properties before Kubernetes
// 1.26, or it fails, unless unknown ones are kept.
//
// +kubebuilder:pruning:PreserveUnknownFields
// +kubebuilder:validation:MaxProperties=0
type InProcessHandler struct{}
