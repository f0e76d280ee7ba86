{{/*
What a gateway asks of the Kubernetes API: VERBS, SANDBOX_VERBS, SNAPSHOT_VERBS, GATEWAY_VERBS, CLUSTER_VERBS and NAMED of
sandbox/engines/kubernetes/resources.py, with which a test compares this.
*/}}
{{- define "airlock.rules.sandboxes" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [create, delete, get, list, patch, watch]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [create, delete, get, list, patch]
- apiGroups: [""]
  resources: [secrets, resourcequotas, limitranges]
  verbs: [create, get, update]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create, get, update]
{{ include "airlock.rules.objects" . }}
{{ include "airlock.rules.records" . }}
{{- end }}

{{- define "airlock.rules.objects" -}}
- apiGroups: [agents.x-k8s.io]
  resources: [sandboxes]
  verbs: [create, delete, get, list, patch]
{{- if include "airlock.copiesVolumes" . }}
- apiGroups: [snapshot.storage.k8s.io]
  resources: [volumesnapshots]
  verbs: [create, delete, get, list]
{{- end }}
{{- end }}

{{/* Whether the configuration names a VolumeSnapshotClass, for all tenants or for one. */}}
{{- define "airlock.copiesVolumes" -}}
{{- $config := .Values.config | default dict }}
{{- $sandbox := $config.sandbox | default dict }}
{{- $found := ($sandbox.kubernetes | default dict).snapshot_class | default "" }}
{{- range $config.tenants | default dict }}
{{- $found = ((. | default dict).kubernetes | default dict).snapshot_class | default $found }}
{{- end }}
{{- $found }}
{{- end }}

{{- define "airlock.rules.records" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create, delete, get, list, update, watch]
{{- end }}

{{- define "airlock.rules.own" -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, get]
{{- end }}

{{- define "airlock.rules.cluster" -}}
- apiGroups: [""]
  resources: [namespaces]
  verbs: [create, delete, get]
- apiGroups: [""]
  resources: [pods]
  verbs: [create, delete, list, watch]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [create, delete, list]
- apiGroups: [""]
  resources: [secrets, resourcequotas, limitranges]
  verbs: [create]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [airlock-relay]
  verbs: [get, update]
- apiGroups: [""]
  resources: [resourcequotas, limitranges]
  resourceNames: [airlock-limits]
  verbs: [get, update]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  resourceNames: [airlock-sandboxes]
  verbs: [get, update]
{{ include "airlock.rules.objects" . }}
{{- end }}
