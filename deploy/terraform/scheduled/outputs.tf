output "url" {
  description = "The URL by which an application opens the store."
  value       = "dynamodb://${aws_dynamodb_table.jobs.name}"
}

output "worker_policy_arn" {
  description = "The policy for workers."
  value       = aws_iam_policy.worker.arn
}

output "enqueuer_policy_arn" {
  description = "The policy for whoever enqueues."
  value       = aws_iam_policy.enqueuer.arn
}

output "operator_policy_arn" {
  description = "The policy for whoever looks, cancels and redrives."
  value       = aws_iam_policy.operator.arn
}
