{{/*
What a gateway asks of the Kubernetes API: VERBS and GATEWAY_VERBS of
sandbox/engines/kubernetes/kubernetes_requests.py, with which a test compares this.
*/}}
{{- define "airlock.rules.sandboxes" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [create, delete, list, watch]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [create, delete, list]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, get, update]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create, delete, get, list, update, watch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create, get, update]
{{- end }}

{{- define "airlock.rules.own" -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, get]
{{- end }}

{{- define "airlock.rules.cluster" -}}
- apiGroups: [""]
  resources: [namespaces]
  verbs: [create, get]
{{- end }}
