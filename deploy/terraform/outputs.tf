output "url" {
  description = "The URL by which an application opens the store."
  value       = "dynamodb+sqs://${aws_dynamodb_table.jobs.name}/${aws_sqs_queue.jobs.name}?dlq=${aws_sqs_queue.dlq.name}"
}

output "queue_arn" {
  description = "The queue, as an event source for Lambda."
  value       = aws_sqs_queue.jobs.arn
}

output "dlq_arn" {
  description = "The dead-letter queue."
  value       = aws_sqs_queue.dlq.arn
}

output "alarm_topic_arn" {
  description = "The topic that is told of dead letters."
  value       = local.topic_arn
}

output "worker_policy_arn" {
  description = "The policy for workers, and for the functions of Lambda."
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
