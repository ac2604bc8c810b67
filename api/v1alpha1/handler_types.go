package v1alpha1

// Handler is what a worker calls with each message.
//
// +kubebuilder:validation:XValidation:rule="[has(self.http), has(self.exec), has(self.process), has(self.inProcess)].filter(x, x).size() == 1",message="a handler needs exactly one of: http, exec, process, inProcess"
// +kubebuilder:validation:XValidation:rule="has(self.image) || !(has(self.exec) || has(self.process) || has(self.inProcess))",message="exec, process and inProcess run in the team's own image: image names it"
type Handler struct {
	// image of the team's own program. For exec, process and inProcess the worker runs in this image. For http it runs
	// beside the worker, in a container named "handler"; without it, something else serves the URL. `redrive run`
	// ignores it.
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

	// process passes messages to a pool of long-running processes.
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
	// HTTPFormatRaw posts the body unchanged, with the headers of the message and those of Redrive.
	HTTPFormatRaw HTTPFormat = "Raw"
	// HTTPFormatCloudEvents is Raw with the attributes of a CloudEvent in binary content mode.
	HTTPFormatCloudEvents HTTPFormat = "CloudEvents"
)

// HTTPHandler posts each message to a URL. A status of 200 to 299 is success. The retry policy decides on any other
// answer, and on a missing one.
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

	// format of the request: Raw, or CloudEvents for binary content mode. Default: Raw.
	// +optional
	Format *HTTPFormat `json:"format,omitempty"`

	// headers says which headers of a message become headers of the request, and under which names. Default: all, at
	// most 64 of them and 8 KiB, with the prefix Redrive-Header-.
	// +optional
	Headers *HTTPHeaders `json:"headers,omitempty"`

	// tls sets the certificate authorities for an https URL. Default: those of the image.
	// +optional
	TLS *HTTPTLS `json:"tls,omitempty"`

	// keepAlive reuses connections. With false each request has a connection of its own, so that no answer of an
	// HTTP/1.1 server can be taken for that of another request. Default: true.
	// +optional
	KeepAlive *bool `json:"keepAlive,omitempty"`

	// headersSecretRef names a Secret of this namespace. Each of its keys is a header of every request, such as
	// Authorization. Workers reload a changed Secret without a restart.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.name.matches('^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$')",message="headersSecretRef must name a Secret"
	HeadersSecretRef *LocalReference `json:"headersSecretRef,omitempty"`

	// readinessURL is requested with GET before the worker consumes, and repeatedly afterwards. While it does not
	// answer with 200 to 299, the worker consumes nothing and counts no attempts. unixSocket, tls and headersSecretRef
	// apply to it if it has the scheme, host and port of url. Default: none; the handler counts as ready.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHostname() != ''",message="readinessURL must be an absolute http or https URL"
	// +kubebuilder:validation:XValidation:rule="!isURL(self) || url(self).getPort() == '' || (url(self).getPort().size() < 6 && int(url(self).getPort()) > 0 && int(url(self).getPort()) < 65536)",message="readinessURL must have a port of 1 to 65535"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[^/?#]*//[^/?#]*@')",message="readinessURL must not hold a user name or password"
	ReadinessURL *string `json:"readinessURL,omitempty"` //nolint:tagliatelle // as Kubernetes spells initialisms: clusterIP
}

// HTTPHeaders says which headers of a message become headers of the request.
// +kubebuilder:validation:XValidation:rule="!has(self.prefix) || self.prefix != 'None' || has(self.allow)",message="with the prefix None allow must name the headers"
type HTTPHeaders struct {
	// allow lists the names of the headers to pass, case-sensitive; a name that ends with an asterisk matches a prefix.
	// Default: all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:Pattern="^[^*]*[*]?$"
	Allow []string `json:"allow,omitempty"`

	// prefix of their names: words of letters and digits, with a dash after each. None means no prefix; headers with a
	// meaning of their own for a request, such as Host, Authorization and Origin, are then left out, even if allow
	// names them. Default: Redrive-Header-.
	// +optional
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:Pattern="^(None|([A-Za-z][A-Za-z0-9]*-)+)$"
	// +kubebuilder:validation:XValidation:rule="self == 'Redrive-Header-' || !self.matches('^(?i)(redrive|proxy|ce|cloudevents|sec|if|accept|access-control|content|x-forwarded)-')",message="prefix must not begin like headers that a request has a meaning for, such as Redrive-, Proxy-, Sec-, If-, Accept-, Content- and X-Forwarded-"
	Prefix *string `json:"prefix,omitempty"`
}

// HTTPTLS sets the certificate authorities for an https URL.
type HTTPTLS struct {
	// caSecretRef names the key of a Secret of this namespace that holds certificates in PEM. They replace those of the
	// image. Workers reload changed ones without a restart.
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
	// key in the Secret. Default: ca.crt.
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

// ProcessHandler passes messages to long-running processes, over their standard input and output.
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

	// processes is the largest number of processes in a pod, with one more while one is replaced. The worker starts
	// them on demand. Default: the concurrency of the worker.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Processes *int32 `json:"processes,omitempty"`

	// startTimeout is the time for a process to say hello, 100ms to 15m. Default: 30s.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('100ms') && duration(self) <= duration('15m')",message="startTimeout is between 100ms and 15m"
	StartTimeout *Duration `json:"startTimeout,omitempty"`

	// recycle says when the worker replaces a process by a new one, between two messages. Default: never.
	// +optional
	Recycle *Recycle `json:"recycle,omitempty"`
}

// Recycle says when the worker replaces a process by a new one: whichever limit comes first.
//
// +kubebuilder:validation:XValidation:rule="has(self.messages) || has(self.age) || has(self.memory)",message="recycle needs messages, age or memory"
type Recycle struct {
	// messages is the number of messages that a process handles.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000
	Messages *int64 `json:"messages,omitempty"`

	// age is the longest life of a process, 1s to 720h.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('720h')",message="age is between 1s and 720h"
	Age *Duration `json:"age,omitempty"`

	// memory is the largest resident memory of a process, such as 256Mi. Linux only.
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
